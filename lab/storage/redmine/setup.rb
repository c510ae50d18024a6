# SPDX-License-Identifier: Apache-2.0
# One project, and an admin with a password and an API key that the test plan knows.
raise 'Redmine has not loaded its default data' if Tracker.none?

admin = User.find_by_login('admin')
admin.password = admin.password_confirmation = 'labadmin1'
admin.must_change_passwd = false
admin.save!
Setting.rest_api_enabled = '1'
admin.api_key
Token.where(user_id: admin.id, action: 'api').update_all(value: '6c616200000000000000000000000000000000ff')
project = Project.new(name: 'Lab', identifier: 'lab')
project.trackers = Tracker.all
project.save!
